"""The rules, as people write them, compiled to functions from an `Event` to its claim."""

from eventonce.rules.explanation import Explanation, PartFound
from eventonce.rules.rule import Match, Rule
from eventonce.rules.ruleset import TRANSPORT, Ruleset

__all__ = ["TRANSPORT", "Explanation", "Match", "PartFound", "Rule", "Ruleset"]
