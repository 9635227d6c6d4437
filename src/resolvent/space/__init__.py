"""The space of machines: pruned, grown, penalised, packed."""

from .connections import connected as connected
from .connections import inserted as inserted
from .connections import selected as selected
from .lasso import GroupLasso as GroupLasso
from .made import packed as packed
from .made import unpacked as unpacked
from .named import NamedNetwork as NamedNetwork
from .named import from_edges as from_edges
from .named import to_edges as to_edges
from .neat import from_neat as from_neat
from .neat import to_neat as to_neat
from .penalty import edge_norms as edge_norms
from .penalty import shrink_ as shrink_
from .simple import levelled as levelled
from .simple import simplified as simplified
