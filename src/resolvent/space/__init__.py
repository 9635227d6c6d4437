"""The space of machines: pruned, grown, penalised."""

from .connections import connected as connected
from .connections import inserted as inserted
from .connections import selected as selected
from .penalty import edge_norms as edge_norms
from .penalty import shrink_ as shrink_
from .simple import levelled as levelled
from .simple import simplified as simplified
