"""Breakages of sinks, letters and replays: what loses an event or brings it about twice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BATCH = "src/eventonce/core/plan.py"
ENGINE = "src/eventonce/core/engine.py"
REDRIVE = "src/eventonce/runtime/redrive.py"
LETTERBOX = "src/eventonce/aws/dlq.py"
PLACES = "src/eventonce/cli/letter_sources.py"
SINKS = "src/eventonce/sinks/"
NOBODY = "tests/integration/test_answers_of_nobody.py::test_"
REPLAYED = "tests/unit/test_replays.py::test_"
LETTERS = "tests/unit/test_letters.py::test_"
LOOKED = "tests/integration/letters/test_looked_at.py::test_"
REDRIVEN = "tests/integration/letters/test_redriven.py::test_"
LINES = "tests/unit/test_sinks_kept.py::test_"
TABLE = "tests/integration/test_sinks_table.py::test_"
HOOK = "tests/integration/test_sinks_webhook.py::test_"
ODD = "tests/integration/test_sinks_webhook_odd.py::test_"
CHOSEN = "tests/unit/test_letters_cli.py::test_"
FILTERED = "tests/unit/test_replays_cli.py::test_"

WAYS_OUT = (
    Mutant(
        "sqs: a message without a receipt was sent",
        "src/eventonce/aws/sqs.py",
        "            if str(number) not in sent\n",
        "            if str(number) in failed\n",
        (NOBODY + "an_event_whose_dead_letter_has_no_receipt_comes_again",),
    ),
    Mutant(
        "sinks: a bus that gives no receipt took the event",
        "src/eventonce/aws/eventbridge.py",
        '            if not told.get("EventId")\n',
        '            if told.get("ErrorCode") in UNFIT\n',
        (NOBODY + "a_bus_that_gives_no_receipt_took_nothing",),
    ),
    Mutant(
        "dynamodb: any answer is DynamoDB's",
        "src/eventonce/stores/dynamodb/table.py",
        "        if not _is_answer(operation, asked, answer):\n",
        "        if False:\n",
        (NOBODY + "a_table_that_does_not_answer_as_dynamodb_does_grants_nothing",),
    ),
    Mutant(
        "replays: only the envelope says how old one is",
        "src/eventonce/core/reasons.py",
        "(instant(event.time), claim.at)",
        "(instant(event.time),)",
        (REPLAYED + "the_event_s_own_time_counts_where_it_is_earlier_than_the_envelope_s",),
    ),
    Mutant(
        "replays: one whose time is in no calendar spoils its batch",
        "src/eventonce/core/reasons.py",
        "if at and at > 0]",
        "if at]",
        (REPLAYED + "a_time_that_cannot_be_one_is_none_and_spoils_no_batch",),
    ),
    Mutant(
        "replays: one that says it is of tomorrow runs",
        "src/eventonce/core/reasons.py",
        "    if happened > now + AHEAD:\n",
        "    if False:\n",
        (REPLAYED + "a_time_that_has_not_come_yet_says_nothing_of_what_is_remembered",),
    ),
    Mutant(
        "replays: filter takes what comes live for a copy of one that it refused",
        "src/eventonce/cli/event_filter.py",
        "                and before[0].peek == claim.peek\n",
        "",
        (FILTERED + "what_comes_live_is_no_copy_of_a_replay_that_was_refused_beside_it",),
    ),
    Mutant(
        "letters: one that the queue refused is acknowledged",
        LETTERBOX,
        "        if refusal:\n",
        "        if False:\n",
        (LETTERS + "a_letter_that_alone_is_refused_is_raised_or_kept_in_the_store",),
    ),
    Mutant(
        "letters: only a store's trouble keeps an event from being acknowledged",
        ENGINE,
        "    except EventonceError as error:\n        return error",
        "    except StoreError as error:\n        return error",
        (LETTERS + "what_a_letterbox_does_not_take_is_not_acknowledged",),
    ),
    Mutant(
        "letters: the second of an event is a copy of the first on a FIFO queue",
        LETTERBOX,
        'f"{letter.id}-{letter.at}" if fifo',
        "letter.id if fifo",
        (LETTERS + "a_letter_given_up_again_is_no_copy_of_the_first_on_a_fifo_queue",),
    ),
    Mutant(
        "letters: looking at a queue hides its messages",
        LETTERBOX,
        "            self._queue.delay([(receipt, 0) for receipt in self._receipts.values()])\n",
        "            pass\n",
        (LOOKED + "a_reader_that_is_interrupted_gives_back_what_it_held",),
    ),
    Mutant(
        "letters: a long queue is read to where its first messages are back",
        LETTERBOX,
        "            if len(fresh) < len(messages):\n",
        "            if not fresh:\n                return\n            if False:\n",
        (LOOKED + "a_queue_whose_messages_come_back_while_it_is_read_is_read_to_its_end",),
    ),
    Mutant(
        "letters: one's own consumer runs those of another store",
        PLACES,
        "if own is None else own.admin",
        "if True else own.admin",
        (CHOSEN + "a_consumer_of_one_s_own_runs_the_letters_of_its_own_store",),
    ),
    Mutant(
        "letters: a redrive deletes what nobody ran",
        PLACES,
        "            if outcome.status in EFFECTIVE | DEAD_LETTERS:\n",
        "            if outcome.ack:\n",
        (REDRIVEN + "a_redrive_runs_a_queue_s_letters_and_deletes_only_what_is_settled",),
    ),
    Mutant(
        "letters: an event without an id gets another one on redrive",
        LETTERBOX,
        'carried = {"MessageId": message["MessageId"]',
        'carried = {"MessageId": "another"',
        (LETTERS + "an_event_without_an_id_goes_by_its_message_s_as_it_did_before",),
    ),
    Mutant(
        "webhook: every try has a key of its own",
        SINKS + "webhook.py",
        '"idempotency-key": job.effect_id}',
        '"idempotency-key": str(job.token)}',
        (HOOK + "a_worker_killed_between_effect_and_settlement_sends_the_same_key_again",),
    ),
    Mutant(
        "webhook: two processes share a connection after a fork",
        SINKS + "http_client.py",
        "        if self._process != os.getpid():\n",
        "        if False:\n",
        (HOOK + "a_fork_does_not_share_its_connections",),
    ),
    Mutant(
        "webhook: what a server says unasked is an answer",
        SINKS + "http_client.py",
        "    def getresponse(self) -> Any:\n",
        "    is_connected = True\n\n    def getresponse(self) -> Any:\n",
        (ODD + "what_a_server_says_unasked_is_not_the_next_event_s_answer",),
    ),
    Mutant(
        "webhook: an interim answer is the answer",
        SINKS + "http_client.py",
        "CONTINUE if 101 < status < 200 else status",
        "status",
        (ODD + "an_interim_answer_is_not_the_answer",),
    ),
    Mutant(
        "webhook: a letter repeats the secrets that a server does",
        SINKS + "http_client.py",
        "    for secret in secrets:\n",
        "    for secret in ():\n",
        (ODD + "no_secret_that_a_server_repeats_gets_into_a_letter",),
    ),
    Mutant(
        "table: the row is committed before the completion",
        SINKS + "table.py",
        "            connection.execute(insert, row)\n",
        '            connection.execute(insert, row)\n            connection.execute("COMMIT")\n',
        (TABLE + "a_worker_killed_between_insert_and_commit_leaves_the_row_exactly_once",),
    ),
    Mutant(
        "queue: every try has a deduplication id of its own",
        SINKS + "sqs.py",
        "deduplication=job.effect_id if",
        "deduplication=str(job.token) if",
        ("tests/integration/test_sinks_aws.py::test_a_fifo_queue_drops_what_is_sent_twice",),
    ),
    Mutant(
        "lines: one is glued to what a crash tore off",
        SINKS + "json_lines.py",
        'line = b"\\n" + line',
        "pass",
        (LINES + "a_torn_line_is_not_glued_to_the_next",),
    ),
    Mutant(
        "lines: nobody waits for the disk",
        SINKS + "json_lines.py",
        "fcntl.LOCK_UN)\n            os.fsync(descriptor)\n",
        "fcntl.LOCK_UN)\n",
        (LINES + "the_disk_has_the_line_before_the_event_is_done",),
    ),
)
