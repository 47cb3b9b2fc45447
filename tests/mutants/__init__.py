"""Planted breakages, as data: what a careless change would do, and the tests that must go red.

`python -m tests.mutants` plants each in a copy of the tree and runs its tests there.
"""

from __future__ import annotations

from tests.mutants.aws import AWS
from tests.mutants.dynamodb import DYNAMODB
from tests.mutants.engine import ENGINES
from tests.mutants.law import LAW
from tests.mutants.mutant import Mutant
from tests.mutants.postgres import POSTGRES
from tests.mutants.redis import REDIS
from tests.mutants.sns import SNS
from tests.mutants.stores import STORES
from tests.mutants.ways_out import WAYS_OUT
from tests.mutants.worker import WORKERS

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: tuple[Mutant, ...] = (
    *LAW,
    *STORES,
    *DYNAMODB,
    *POSTGRES,
    *REDIS,
    *ENGINES,
    *AWS,
    *WAYS_OUT,
    *SNS,
    *WORKERS,
)
