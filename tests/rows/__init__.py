"""One written event for every row of every preset."""

from tests.rows.auto import AUTO
from tests.rows.cxone import CXONE
from tests.rows.genesys import GENESYS
from tests.rows.latest import LATEST
from tests.rows.others import OTHERS
from tests.rows.relayed import RELAYED

ROWS = [*GENESYS, *LATEST, *CXONE, *OTHERS, *RELAYED, *AUTO]
