"""From an `Event` to its claim: rules as people write them, compiled to what they read."""

from eventonce.rules.explanation import Explanation, PartFound
from eventonce.rules.rule import Match, Rule
from eventonce.rules.ruleset import TRANSPORT, Ruleset

__all__ = ["TRANSPORT", "Explanation", "Match", "PartFound", "Rule", "Ruleset"]
