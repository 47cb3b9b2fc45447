"""Breakages of the DynamoDB store: guards left out, clocks believed, failures passed over."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORE = "src/eventonce/stores/dynamodb/"
AT_WORK = "tests/integration/dynamodb/test_{}.py::test_{}"
CONTRACT = "tests/contract/test_dynamodb.py::TestOnMinistack::test_case[{}]"

DIRECT = "tests/unit/test_aws_direct.py::test_"

DYNAMODB = (
    Mutant(
        "direct: a variable that is not understood is passed over",
        "src/eventonce/aws/direct.py",
        "or any(map(_is_for_botocore, set_here))",
        "",
        (DIRECT + "any_other_variable_is_left_to_botocore",),
    ),
    Mutant(
        "direct: the credentials of the start sign every request",
        "src/eventonce/aws/direct.py",
        "        credentials = _credentials()\n",
        "        credentials = self.__dict__.setdefault('_kept', _credentials())\n",
        (DIRECT + "requests_share_a_connection_and_have_the_credentials_of_the_moment",),
    ),
    Mutant(
        "direct: a damaged answer is believed",
        "src/eventonce/aws/direct.py",
        "            raise ChecksumError\n",
        "            pass\n",
        (DIRECT + "what_does_not_pass_is_told_as_unavailable",),
    ),
    Mutant(
        "direct: a connection that the service closed is used again",
        "src/eventonce/aws/direct.py",
        "            if not _is_closed(connection):\n",
        "            if connection:\n",
        (DIRECT + "a_connection_that_the_service_closed_is_not_used_again",),
    ),
    Mutant(
        "direct: a service that fails is asked by everybody again and again",
        "src/eventonce/aws/direct.py",
        "        self._tokens -= RETRY_COST\n",
        "",
        (DIRECT + "a_service_that_fails_for_long_is_asked_once_by_each_caller",),
    ),
    Mutant(
        "direct: any certificate is trusted",
        "src/eventonce/aws/direct.py",
        "ssl.create_default_context(cafile=_certificates())",
        "ssl._create_unverified_context()",
        (DIRECT + "only_a_trusted_certificate_of_this_host_is_accepted",),
    ),
    Mutant(
        "sigv4: the body is not signed",
        "src/eventonce/aws/sigv4.py",
        "{sha256(body).hexdigest()}",
        "{sha256(b'').hexdigest()}",
        ("tests/unit/test_sigv4.py::test_a_signature_is_botocores",),
    ),
    Mutant(
        "dynamodb: an update goes through whatever is there",
        STORE + "optimistic.py",
        "return Update(name, put, gone, there.guard), seen",
        "return Update(name, put, gone, ()), seen",
        (
            AT_WORK.format(
                "requests",
                "a_late_completion_is_refused_though_its_run_is_remembered[on_ministack]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: a lone claim overwrites what is there",
        STORE + "table.py",
        'ConditionExpression="attribute_not_exists(#key)",',
        'ConditionExpression="attribute_not_exists(#key) OR attribute_exists(#key)",',
        (AT_WORK.format("requests", "a_lone_copy_is_one_request_and_no_read[on_ministack]"),),
    ),
    Mutant(
        "dynamodb: this machine's clock is believed",
        STORE + "table.py",
        "return 0 if earliest <= 0 <= latest else earliest",
        "return 0",
        (CONTRACT.format("a_worker_whose_clock_is_ahead_completes_no_others_run"),),
    ),
    Mutant(
        "dynamodb: a wrong clock is put ahead of the service's",
        STORE + "table.py",
        "return 0 if earliest <= 0 <= latest else earliest",
        "return 0 if earliest <= 0 <= latest else latest",
        (AT_WORK.format("clock", "a_machine_that_is_ahead_is_put_back_and_never_stays_ahead"),),
    ),
    Mutant(
        "dynamodb: a grant at the wrong instant is left so",
        STORE + "optimistic.py",
        "elif mistimed and not it.corrected:",
        "elif False:",
        (
            AT_WORK.format(
                "clock",
                "a_worker_whose_clock_is_off_has_its_whole_lease_and_no_more[on_ministack--600000-1]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: all stamps are alike",
        STORE + "codec.py",
        'return {"N": str(secrets.randbits(53))}',
        'return {"N": "1"}',
        (
            AT_WORK.format(
                "requests",
                "a_late_completion_is_refused_though_its_run_is_remembered[on_ministack]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: what is remembered of a run counts as read",
        STORE + "store.py",
        "return Ground(seen.record, seen, proven=False)",
        "return Ground(seen.record, seen, proven=True)",
        (
            AT_WORK.format(
                "requests",
                "what_is_remembered_of_a_run_is_looked_at_again_before_it_is_refused[on_ministack]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: a refused insert is not looked at",
        STORE + "optimistic.py",
        "it.ground = _told(table, outcome.item)",
        "it.ground = NEW",
        (
            AT_WORK.format(
                "requests", "copies_among_new_events_are_read_after_the_write[on_ministack]"
            ),
        ),
    ),
    Mutant(
        "dynamodb: one item is written twice in a request",
        STORE + "optimistic.py",
        "later = [it for it in waiting if turn[it.name] is not it]",
        "later = []\n        turn = {it.name: it for it in waiting}",
        (
            AT_WORK.format(
                "requests",
                "two_settlements_of_one_key_in_a_call_are_done_in_their_order[on_ministack]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: reads are not consistent",
        STORE + "table.py",
        '"ConsistentRead": True,',
        '"ConsistentRead": False,',
        (AT_WORK.format("requests", "every_read_is_consistent[on_ministack]"),),
    ),
    Mutant(
        "dynamodb: copies are never read first",
        STORE + "store.py",
        "hopeful = self._copies <= COPIES",
        "hopeful = True",
        (
            AT_WORK.format(
                "requests",
                "where_copies_are_many_they_are_read_first_and_cost_one_request[on_ministack]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: a throttled statement is not sent again",
        STORE + "table.py",
        'if is_passing(answer.get("Error", {}).get("Code", ""))',
        "if False",
        (AT_WORK.format("errors", "a_statement_that_fails_for_a_moment_is_sent_again_alone"),),
    ),
    Mutant(
        "dynamodb: keys left unread count as absent",
        STORE + "table.py",
        'wanted = answer.get("UnprocessedKeys")',
        "wanted = None",
        (
            AT_WORK.format(
                "errors", "keys_left_unread_are_read_again_and_at_last_are_their_claims_errors"
            ),
        ),
    ),
    Mutant(
        "dynamodb: one claim's failure is its batch's",
        STORE + "store.py",
        "if failed and len(failed) == len(claims):",
        "if failed:",
        (AT_WORK.format("errors", "a_statement_that_keeps_failing_is_its_own_claims_error"),),
    ),
    Mutant(
        "dynamodb: a settlement that failed is passed over",
        STORE + "store.py",
        "        if fault is not None:\n            raise fault\n",
        "",
        (AT_WORK.format("errors", "a_settlement_that_keeps_failing_is_told_and_can_be_repeated"),),
    ),
    Mutant(
        "dynamodb: too large a result is sent",
        STORE + "store.py",
        "len(settlement.result) > LARGEST_RESULT",
        "len(settlement.result) > 10 * LARGEST_RESULT",
        (AT_WORK.format("errors", "a_result_that_fits_no_item_is_refused_and_nothing_is_settled"),),
    ),
    Mutant(
        "dynamodb: an item of a newer format is read",
        STORE + "codec.py",
        'if int(item[FORMAT_NAME]["N"]) > FORMAT:',
        "if False:",
        (AT_WORK.format("errors", "a_record_of_a_newer_format_is_its_own_claims_error"),),
    ),
    Mutant(
        "dynamodb: what another release added is removed",
        STORE + "codec.py",
        "for name, value in item.items() if name in _NAMES}",
        "for name, value in item.items() if name not in (self.key, STAMP)}",
        (AT_WORK.format("versions", "what_the_next_release_adds_is_kept_by_this_one"),),
    ),
    Mutant(
        "dynamodb: an item of the old script counts as expired",
        STORE + "codec.py",
        "Record(done=True, expires=expires)",
        "Record(done=True, expires=0)",
        (
            AT_WORK.format(
                "seed_table",
                "what_the_old_script_saw_is_a_duplicate_until_it_expires[on_ministack]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: the expiry is rounded down",
        STORE + "codec.py",
        "-(-max(record.expires, record.held_until) // 1000)",
        "max(record.expires, record.held_until) // 1000",
        (
            AT_WORK.format(
                "seed_table",
                "our_items_have_the_two_attributes_and_expire_when_they_should[on_ministack]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: an item expires while its lease lives",
        STORE + "codec.py",
        "-(-max(record.expires, record.held_until) // 1000)",
        "-(-record.expires // 1000)",
        (
            AT_WORK.format(
                "seed_table",
                "our_items_have_the_two_attributes_and_expire_when_they_should[on_ministack]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: two keys share a name",
        STORE + "codec.py",
        "return key.hex()\n    if _HEX",
        "return key.hex()[:30]\n    if _HEX",
        (CONTRACT.format("any_sixteen_bytes_are_a_key"),),
    ),
    Mutant(
        "dynamodb: a signature error is repeated",
        "src/eventonce/aws/errors.py",
        "does not accept the credentials ({code})",
        "does not accept the credentials ({message})",
        (AT_WORK.format("uri", "secrets_are_in_no_message"),),
    ),
    Mutant(
        "dynamodb: connections live on after a fork",
        "src/eventonce/aws/sessions.py",
        "        if self._process != os.getpid():\n",
        "        if False:\n",
        (
            AT_WORK.format(
                "processes",
                "a_store_works_on_in_parent_and_children_after_a_fork[on_ministack-made]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: a large letter is cut",
        STORE + "letters.py",
        "for name, start in zip(names, range(0, len(packed), ROOM), strict=True)",
        "for name, start in zip(names[:1], range(0, len(packed), ROOM), strict=False)",
        (
            AT_WORK.format(
                "letters",
                "a_letter_of_any_size_comes_back_whole_and_goes_without_a_trace[on_ministack-400000]",
            ),
        ),
    ),
    Mutant(
        "dynamodb: parts of a dropped letter stay behind",
        STORE + "letters.py",
        "_all_done(table.write([Delete(part) for part in parts]))",
        "pass",
        (
            AT_WORK.format(
                "letters",
                "a_letter_of_any_size_comes_back_whole_and_goes_without_a_trace[on_ministack-400000]",
            ),
        ),
    ),
)
