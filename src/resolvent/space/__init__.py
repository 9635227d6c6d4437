"""The space of machines: pruned, grown, penalised, packed."""

from .connections import connected as connected
from .connections import inserted as inserted
from .connections import selected as selected
from .lasso import GroupLasso as GroupLasso
from .made import packed as packed
from .made import unpacked as unpacked
from .penalty import edge_norms as edge_norms
from .penalty import shrink_ as shrink_
from .simple import levelled as levelled
from .simple import simplified as simplified
