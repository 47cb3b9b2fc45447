"""The law as SQL: the status of each row of one key, in the order of arrival.

Every row counts as settled when the next one arrives, as in a backtest without crashes. Window
functions decide nearly all rows. Two cases are decided row after row, by folding a list, because a
row is compared with the last one that ran: a fact that comes again after `remember`, and a state
that comes again within `unchanged_within`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eventonce.core.ledger import KEPT_DIGESTS

RESULT_COLUMNS: Final = {
    "arrived": "arrived",
    "rule": "eventonce_rule",
    "key": "eventonce_key",
    "version": "eventonce_version",
    "copy_number": "eventonce_copy",
    "status": "eventonce_status",
    "counts": "eventonce_counts",
    "doubt": "eventonce_doubt",
}
"""The columns of the last step, and their names in the result."""

INEXACT_NUMBERS: Final = "numbers that SQL cannot compare exactly"

_KEY: Final = "PARTITION BY key, island"
_BEFORE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"


def judged(kept: Mapping[str, str]) -> dict[str, str]:
    """Return the tables from the keys of the rows to their status; the last is the result. `kept`
    has the columns that are only passed on, and their names in the result."""
    passed_on = "".join(f"{column}, " for column in kept)
    named = ", ".join(f"{column} AS {name}" for column, name in {**kept, **RESULT_COLUMNS}.items())
    return {
        "sure": "SELECT *, CASE WHEN doubt IS NULL THEN own_key END AS key FROM keyed",
        "placed": f"""SELECT *,
            ROW_NUMBER() OVER (PARTITION BY key ORDER BY arrived NULLS FIRST, place, event) AS pos,
            CASE WHEN MIN(remember) OVER (PARTITION BY key) <> MAX(remember) OVER (PARTITION BY key)
                THEN 'rules that remember for different times'
              WHEN MAX(CASE WHEN vague THEN 1 ELSE 0 END) OVER (PARTITION BY key) = 1
                THEN '{INEXACT_NUMBERS}' END AS trouble
          FROM sure""",
        "spaced": """SELECT *, LAG(arrived) OVER (PARTITION BY key ORDER BY pos) AS earlier
          FROM placed""",
        # A gap as long as `remember` always ends a window.
        "parted": """SELECT *,
            SUM(CASE WHEN arrived - earlier >= remember THEN 1 ELSE 0 END)
              OVER (PARTITION BY key ORDER BY pos ROWS UNBOUNDED PRECEDING) AS island
          FROM spaced""",
        "ordered": f"""SELECT *,
            MAX(version) OVER ({_KEY} ORDER BY pos {_BEFORE}) AS newest,
            ROW_NUMBER() OVER ({_KEY}, version, content ORDER BY pos) AS telling
          FROM parted""",
        "told": """SELECT *,
            version IS NULL OR newest IS NULL OR version > newest
              OR (version = newest AND telling = 1) AS news
          FROM ordered""",
        "compared": f"""SELECT *,
            LAG(content) OVER ({_KEY}, news ORDER BY pos) AS content_before,
            LAG(own_time) OVER ({_KEY}, news ORDER BY pos) AS time_before,
            MAX(own_time) OVER ({_KEY}, news ORDER BY pos {_BEFORE}) AS latest_before,
            MAX(CASE WHEN news THEN arrived END) OVER ({_KEY} ORDER BY pos {_BEFORE})
              AS news_before,
            SUM(CASE WHEN news THEN 1 ELSE 0 END)
              OVER ({_KEY}, version ORDER BY pos ROWS UNBOUNDED PRECEDING) AS ties
          FROM told""",
        "linked": f"""SELECT *,
            CASE WHEN version IS NULL THEN arrived ELSE own_time END AS moment,
            CASE WHEN version IS NULL THEN remember ELSE unchanged_within END AS width,
            MAX(CASE WHEN version IS NOT NULL AND (ties > {KEPT_DIGESTS}
              OR (NOT sliding AND arrived - news_before >= remember)) THEN 1 ELSE 0 END)
              OVER ({_KEY} ORDER BY pos ROWS UNBOUNDED PRECEDING) AS unsure,
            SUM(CASE WHEN version IS NULL OR NOT news THEN 0
              WHEN unchanged_within = 0 OR own_time IS NULL OR time_before IS NULL
                OR content <> content_before
                OR own_time - latest_before >= unchanged_within THEN 1 ELSE 0 END)
              OVER ({_KEY}, news ORDER BY pos ROWS UNBOUNDED PRECEDING) AS chain
          FROM compared""",
        "numbered": f"""SELECT *,
            ROW_NUMBER() OVER ({_KEY}, news, chain ORDER BY pos) AS link,
            FIRST_VALUE(moment) OVER ({_KEY}, news, chain ORDER BY pos) AS first_moment,
            MIN(moment) OVER ({_KEY}, news, chain) AS least,
            MAX(moment) OVER ({_KEY}, news, chain) AS most,
            COUNT(*) OVER ({_KEY}, news, chain) AS links
          FROM linked""",
        "chained": """SELECT *,
            links = 1 OR (sliding AND version IS NULL)
              OR COALESCE(least >= first_moment AND most - first_moment < width, TRUE) AS whole
          FROM numbered""",
        "walked": f"""SELECT *,
            ARRAY_AGG(moment) OVER ({_KEY}, news, chain, CASE WHEN whole THEN pos END
              ORDER BY pos {_BEFORE}) AS moments_before
          FROM chained""",
        "anchored": "SELECT *, EO_ANCHOR(moments_before, width) AS anchor FROM walked",
        "started": """SELECT *,
            news AND (link = 1 OR (NOT whole AND NOT
              COALESCE(moment - anchor >= 0 AND moment - anchor < width, FALSE))) AS starts
          FROM anchored""",
        "grouped": f"""SELECT *,
            SUM(CASE WHEN starts THEN 1 ELSE 0 END)
              OVER ({_KEY} ORDER BY pos ROWS UNBOUNDED PRECEDING) AS span
          FROM started""",
        "ranked": f"""SELECT *,
            ROW_NUMBER() OVER ({_KEY}, span ORDER BY pos) AS rank_in_span,
            FIRST_VALUE(content) OVER ({_KEY}, span ORDER BY pos) AS first_content
          FROM grouped""",
        "decided": f"""SELECT event, {passed_on}arrived, rule, key, version, pos,
            CASE WHEN version IS NULL THEN rank_in_span ELSE telling END AS copy_number,
            CASE WHEN doubt IS NOT NULL THEN doubt
              WHEN key IS NOT NULL AND trouble IS NOT NULL THEN trouble
              WHEN key IS NOT NULL AND unsure = 1 THEN 'versions over longer than is remembered'
              END AS doubt,
            CASE WHEN way = 'run' THEN 'done'
              WHEN key IS NULL THEN 'invalid'
              WHEN version IS NULL AND starts THEN 'done'
              WHEN version IS NULL THEN CASE WHEN content <> first_content
                THEN 'conflict' ELSE 'duplicate' END
              WHEN version < newest THEN 'stale'
              WHEN NOT news THEN 'duplicate'
              WHEN starts THEN 'done' ELSE 'unchanged' END AS status
          FROM ranked""",
        "counted": f"""SELECT event, {passed_on}arrived, rule, key, version, doubt,
            CASE WHEN doubt IS NULL AND key IS NOT NULL THEN copy_number END AS copy_number,
            CASE WHEN doubt IS NULL THEN status ELSE 'doubt' END AS status,
            doubt IS NOT NULL OR (status = 'done' AND (version IS NULL
              OR pos = MAX(CASE WHEN status = 'done' AND doubt IS NULL THEN pos END)
                OVER (PARTITION BY key))) AS counts
          FROM decided""",
        "result": f"SELECT event, {named} FROM counted",
    }
