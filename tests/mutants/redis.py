"""Breakages of the Redis store: the law misread in Lua, replies mixed up, slots lost sight of."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORE = "src/eventonce/stores/redis/"
LAW = "tests/integration/test_redis_law.py"
HOLES = "tests/contract/test_redis.py::TestValkey::test_hole"
PROGRAMS = "tests/contract/test_redis.py::TestValkey::test_case[every_answer_is_the_laws]"
RECORDS = "tests/integration/test_redis_records.py::test_"
CLIENTS = "tests/integration/test_redis_clients.py::test_"
FAILURES = "tests/integration/test_redis_failures.py::test_"
SCHEMES = "tests/integration/test_redis_schemes.py::test_"
SETTINGS = "tests/integration/test_redis_settings.py::test_"
CLUSTER = "tests/integration/test_redis_cluster.py::test_"
CONNECTIONS = "tests/integration/test_redis_connections.py::test_"
MEMORY = "tests/integration/test_redis_memory.py::test_"
FAILOVER = "tests/integration/test_redis_failover.py::test_"

_LAW = (
    ("a token may return", "max(r.token + 1, now * 1000)", "r.token + 1", HOLES),
    ("a token may go back", "max(r.token + 1, now * 1000)", "now * 1000", LAW),
    ("a dirty state is called unchanged", "not r.dirty and", "", HOLES),
    ("a tie is stale", "c.order < r.order then", "c.order <= r.order then", HOLES),
    (
        "what a given-up version holds back waits for nothing",
        "if now < till and #r.dead == 0 then",
        "if now < till then",
        HOLES,
    ),
    ("a lost reply locks its owner out", "if r.nonce ~= t.nonce then", "if true then", HOLES),
    (
        "a sliding window may shrink",
        "if not t.sliding or r.expires >= now + t.remember then",
        "if not t.sliding then",
        LAW,
    ),
    (
        "a tie forgets what was given up",
        "c.order == r.tried and records.without(r.dead, c.digest) or {}",
        "{}",
        HOLES,
    ),
    ("an earlier state is called unchanged", "and between >= 0 and", "and", PROGRAMS),
    ("a peek is a claim", "if t.peek then", "if false then", PROGRAMS),
    (
        "attempts are forgotten with the window",
        "max(r.expires, now + max(t.remember, UNSETTLED))",
        "max(r.expires, now + t.remember)",
        HOLES,
    ),
    (
        "a tie answers with another version's result",
        "if not c.order or c.digest == r.digests[#r.digests] then",
        "if true then",
        HOLES,
    ),
    (
        "an unchanged version keeps the ties before it",
        "r.order, r.by, r.digests = c.order, c.by, {c.digest}",
        "r.order, r.by = c.order, c.by",
        HOLES,
    ),
    (
        "an unchanged version shortens the memory",
        "r.expires = max(r.expires, now + t.remember)",
        "r.expires = now + t.remember",
        HOLES,
    ),
    (
        "a stale version waits for the lease",
        "if c.order < r.order then",
        "if c.order < r.order and now >= r.held_until then",
        HOLES,
    ),
)

_CLAIM = (
    ("a copy is one for ever", "if now < expires and (digest", "if (digest", LAW),
    (
        "other content is a copy",
        "if now < expires and (digest == content or digest == '' or content == '') then",
        "if now < expires then",
        LAW,
    ),
    (
        "no window slides",
        "byte(raw) == DONE) and flags % 4 < 2 then",
        "byte(raw) == DONE) then",
        LAW,
    ),
    (
        "every copy is a re-publish",
        "by == winner and REDELIVERED or REPUBLISHED",
        "REPUBLISHED",
        LAW,
    ),
    (
        "a new fact's attempts are forgotten",
        "now + max(remember, UNSETTLED)",
        "now + remember",
        LAW,
    ),
    ("a batch has the terms of its first", "if number ~= terms then", "if not terms then", LAW),
    (
        "nothing is waited for where nothing was written",
        "if waiting == 1 and seen and not written then",
        "if false then",
        FAILOVER + "replicas_are_waited_for_whatever_was_written",
    ),
)

_SETTLE = (
    ("any token completes a fact", "if latest == token and", "if", LAW),
    ("what expired is completed", "(now < expires or now < held_until)", "true", LAW),
    ("any token settles", "if r.token ~= t.token then return FENCED, false end", "", HOLES),
    ("a completed run is released", "if r.done then return FENCED, false end", "", PROGRAMS),
    (
        "a buried run is released",
        "frees and not records.among(r.dead, s.digest) and KEPT",
        "frees and KEPT",
        PROGRAMS,
    ),
    (
        "a renewal shortens a lease",
        "r.held_until = max(now + t.lease, records.cut_down(r.held_until, t.lease, now))",
        "r.held_until = now + t.lease",
        LAW,
    ),
    (
        "a completion forgets what was given up beside it",
        "(#r.dead > 0 and max(t.remember, UNSETTLED) or t.remember)",
        "t.remember",
        LAW,
    ),
    (
        "a completion drops what the next release added",
        "if #raw > known then value = value .. sub(raw, known + 1) end",
        "",
        RECORDS + "what_the_next_release_adds_is_read_over_and_kept",
    ),
)

_RECORDS = (
    (
        "a change drops what the next release added",
        "r.extra = sub(raw, after)",
        "",
        RECORDS + "what_the_next_release_adds_is_read_over_and_kept",
    ),
    (
        "a record leaves before its lease",
        "'PXAT', max(r.expires, r.held_until)",
        "'PXAT', r.expires",
        RECORDS + "a_lease_longer_than_the_memory_keeps_its_record",
    ),
    ("a long run is packed too short", "rest < 65536 then", "rest < 655360 then", LAW),
    ("a token is rounded", "if at % 1 == 0 and at >= 0", "if at >= 0", LAW),
    ("one tie too many is remembered", "KEPT_DIGESTS + 2", "KEPT_DIGESTS + 1", HOLES),
)

_CONNECTIONS = (
    (
        "a child speaks on its parent's connections",
        "if connection.pid != os.getpid():",
        "if False:",
        CLIENTS + "a_store_goes_on_in_both_processes_after_a_fork",
    ),
    (
        "an interrupted call's reply is the next one's",
        "    connections.release(connection, sound=False)\n                    if isinstance",
        "    connections.release(connection)\n                    if isinstance",
        CLIENTS + "an_interrupted_call_leaves_no_reply_for_the_next",
    ),
    (
        "a lost script stays lost",
        "    if unknown:\n",
        "    if False:\n",
        FAILURES + "a_script_the_server_has_lost_is_sent_again",
    ),
    (
        "a time-out leaves its idle siblings",
        "if isinstance(error, TimedOut):",
        "if False:",
        CONNECTIONS + "one_time_out_is_the_last_of_its_idle_siblings[claim]",
    ),
    (
        "a connection is idle without end",
        "if monotonic() - used < IDLE_LIMIT:",
        "if True:",
        CONNECTIONS + "a_connection_that_was_idle_for_long_is_not_used_again",
    ),
    (
        "a small pool is emptied",
        "min(MAX_IDLE, pool.max_connections // 2)",
        "MAX_IDLE",
        CLIENTS + "others_find_connections_in_a_small_pool",
    ),
    (
        "too few replicas are enough",
        "confirmed < wait.replicas",
        "False",
        FAILOVER + "replicas_are_waited_for_whatever_was_written",
    ),
)

_SERVER = (
    (
        "a dead connection is tried again",
        "        self._connections.disconnect()\n        return execute",
        "        return execute",
        CLIENTS + "all_connections_at_hand_may_have_died",
    ),
    (
        "a replica is asked for ever",
        "if any(isinstance(reply, ReadOnlyError) for reply in replies):",
        "if False:",
        FAILURES + "an_address_may_lead_to_another_server",
    ),
)

_CLUSTER = (
    (
        "a settlement does not wait for a failover",
        "max(retry_for, MIGRATION) if torn else retry_for",
        "0",
        FAILOVER + "a_settlement_outlasts_a_failover",
    ),
    (
        "a slot that moved is never found",
        "                    self._refresh()\n",
        "                    pass\n",
        CLUSTER + "a_slot_that_has_moved_is_found",
    ),
    (
        "a slot that is moving holds up its keys",
        "            if _migrating(reply):",
        "            if False:",
        CLUSTER + "a_slot_that_is_moving_is_served_key_by_key",
    ),
    (
        "one record is not sought where its slot moves to",
        "if follow and _migrating(it)",
        "if False",
        CLUSTER + "one_record_is_found_on_either_side_of_a_slot_that_is_moving",
    ),
    (
        "a key that has moved is asked for without ASKING",
        "command._replace(asking=True) if n in targets else command",
        "command",
        CLUSTER + "one_record_is_found_on_either_side_of_a_slot_that_is_moving",
    ),
    (
        "two keys of which one has moved are given up",
        "return _asks(reply) or isinstance(reply, TryAgainError)",
        "return _asks(reply)",
        CLUSTER + "dead_letters_are_kept_listed_and_dropped_while_their_slot_is_moving",
    ),
    (
        "the second redirection is not followed",
        "(REDIRECTIONS if redirected else 1)",
        "1",
        CLUSTER + "a_migration_that_is_given_up_leads_back_to_the_source",
    ),
    (
        "each thread refreshes the slots",
        "if refreshes != self._refreshes:",
        "if False:",
        CLUSTER + "threads_that_refresh_the_slots_share_a_refresh",
    ),
)

_OTHERS = (
    (
        "a server that speaks TLS is called away",
        "errors.py",
        "and _hung_up(error) and wants_tls():",
        "and False:",
        SETTINGS + "a_server_that_speaks_tls_is_named_where_the_uri_says_nothing_of_it[no]",
    ),
    (
        "a serverless cache gets a token of another kind",
        "uri.py",
        '"serverless": ("elasticache", {"ResourceType": "ServerlessCache"})',
        '"serverless": ("elasticache", {})',
        SCHEMES + "a_token_is_the_signed_request_to_connect",
    ),
    (
        "the sentinels' password is not given to them",
        "uri.py",
        "sentinel_kwargs=self.sentinel",
        "sentinel_kwargs={}",
        SCHEMES + "a_uri_with_sentinels_leads_to_the_new_primary",
    ),
    (
        "no replica is waited for where a slot moves to",
        "cluster.py",
        "self._round([commands[n] for n in retried], wait, asked)",
        "self._round([commands[n] for n in retried], Wait(), asked)",
        CLUSTER + "replicas_are_waited_for_while_a_slot_is_moving",
    ),
    (
        "the address of the URI is asked once",
        "cluster.py",
        "for host, port in self._hosts:",
        "for host, port in ():",
        CLUSTER + "nodes_that_were_all_replaced_are_found_at_the_address_of_the_uri",
    ),
    (
        "a full server keeps no completion",
        "codec.py",
        "_script(_EVEN_IF_FULL, ",
        "_script(",
        MEMORY + "whatever_a_run_ends_with_fits[valkey-complete]",
    ),
    (
        "one partition's failure is the batch's",
        "store.py",
        'by_index.update(dict.fromkeys(indexes, Verdict("error", error=error)))',
        "raise error",
        CLUSTER + "a_partition_that_is_gone_fails_alone",
    ),
    (
        "a URI is shown with its password",
        "uri.py",
        "parts = parse_uri(uri, _HELP)",
        "parts = parse_uri(uri, uri)",
        SETTINGS + "a_uri_that_cannot_be_read_is_not_shown",
    ),
    (
        "a call mixes partitions",
        "codec.py",
        "key[-1] % len(TAGS)",
        "key[0] % len(TAGS)",
        CLUSTER + "a_batch_is_one_call_for_each_partition_it_touches",
    ),
)

_BY_FILE = {
    "claim.lua": (*_LAW, *_CLAIM),
    "settle.lua": _SETTLE,
    "records.lua": _RECORDS,
    "connections.py": (*_CONNECTIONS, *_SERVER),
    "cluster.py": _CLUSTER,
}

REDIS = (
    *(
        Mutant(f"redis: {name}", STORE + file, old, new, (red,))
        for file, mutants in _BY_FILE.items()
        for name, old, new, red in mutants
    ),
    *(
        Mutant(f"redis: {name}", STORE + file, old, new, (red,))
        for name, file, old, new, red in _OTHERS
    ),
)
