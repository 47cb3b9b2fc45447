"""Breakages of SNS in the receiver: what believes a stranger, asks a stranger's host, or loses what
SNS would have sent again."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SNS_FILE = "src/eventonce/web/sns.py"
FETCHES = SNS_FILE
EVENTS = "src/eventonce/web/events.py"
DESK = "tests/integration/test_receiver_sns.py::test_"
BESIDE = "tests/unit/test_web_sns.py::test_"

SNS = (
    Mutant(
        "sns: any topic is allowed",
        SNS_FILE,
        "        host = self._hosts.get(message.topic)\n",
        "        host = next(iter(self._hosts.values()))\n",
        (DESK + "another_topic_is_refused_though_sns_signed_it",),
    ),
    Mutant(
        "sns: a certificate comes from wherever a message says",
        SNS_FILE,
        r'if not _is_at(host, message.certificate_url, r"[\w-]+\.pem"):',
        "if False:",
        (DESK + "a_certificate_from_elsewhere_is_not_even_asked_for",),
    ),
    Mutant(
        "sns: a certificate comes from any region",
        SNS_FILE,
        "https://{re.escape(host)}/",
        r"https://sns\.[a-z0-9-]+\.amazonaws\.com/",
        (DESK + "a_certificate_from_elsewhere_is_not_even_asked_for",),
    ),
    Mutant(
        "sns: a message may be of any age",
        SNS_FILE,
        "at is None or abs(now - at / 1000) > self._tolerance",
        "at is None",
        (DESK + "a_message_that_is_too_old_or_of_tomorrow_is_refused",),
    ),
    Mutant(
        "sns: a certificate is valid for ever",
        SNS_FILE,
        "if not certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc:",
        "if not at:",
        (DESK + "a_certificate_that_is_not_valid_now_is_refused",),
    ),
    Mutant(
        "sns: any signature fits",
        SNS_FILE,
        '        return "the signature does not fit"\n',
        '        return ""\n',
        (
            DESK + "a_field_that_was_changed_is_refused",
            DESK + "a_signature_of_the_other_version_or_of_another_key_is_refused",
        ),
    ),
    Mutant(
        "sns: one signature fits several messages",
        SNS_FILE,
        'if name != "Message"):',
        'if name == "Type"):',
        (DESK + "lines_moved_from_one_field_to_another_are_refused",),
    ),
    Mutant(
        "sns: fields that nobody signed are read",
        EVENTS,
        "            headers, body = found.headers, found.body\n",
        "            headers = found.headers\n",
        (DESK + "what_nobody_signed_is_not_read",),
    ),
    Mutant(
        "sns: headers that nobody signed are read",
        EVENTS,
        "            headers, body = found.headers, found.body\n",
        "            body = found.body\n",
        (DESK + "what_nobody_signed_is_not_read",),
    ),
    Mutant(
        "sns: the header says what kind a message is",
        SNS_FILE,
        "        if message.type != headers[SNS_TYPE]:\n",
        "        if False:\n",
        (DESK + "a_subscription_whose_signature_does_not_fit_is_not_confirmed",),
    ),
    Mutant(
        "sns: a SubscribeURL is visited wherever it leads",
        SNS_FILE,
        "        if not _is_at(self._hosts[message.topic], url):\n",
        "        if False:\n",
        (DESK + "a_subscribe_url_elsewhere_is_not_visited_even_if_it_is_signed",),
    ),
    Mutant(
        "sns: any page confirms a subscription",
        SNS_FILE,
        "if isinstance(answer, bytes) and receipt in answer:",
        "if isinstance(answer, bytes):",
        (DESK + "a_confirmation_that_gives_no_receipt_is_tried_again",),
    ),
    Mutant(
        "sns: the end of a subscription is undone",
        EVENTS,
        "            if message.type == SUBSCRIPTION:\n",
        "            if message.type != NOTIFICATION:\n",
        (DESK + "the_end_of_a_subscription_is_logged_and_not_undone",),
    ),
    Mutant(
        "sns: who is known may confirm what nobody signed",
        "src/eventonce/web/authentication.py",
        "(kind == NOTIFICATION and self.knows(headers))",
        "self.knows(headers)",
        (DESK + "basic_authentication_takes_raw_messages_and_a_handshake_is_still_proved",),
    ),
    Mutant(
        "sns: a message whose certificate is away is lost",
        SNS_FILE,
        'return Doubt("the signing certificate could not be had", for_good=False)',
        'return Doubt("the signing certificate could not be had")',
        (DESK + "without_the_certificate_nothing_is_believed_and_sns_sends_again",),
    ),
    Mutant(
        "sns: the certificate is fetched for every message",
        SNS_FILE,
        "            found = self._certificates[url] = read\n",
        "            found = read\n",
        (DESK + "the_certificate_is_fetched_once",),
    ),
    Mutant(
        "sns: redirects are followed",
        FETCHES,
        "build_opener(_NoRedirects, ",
        "build_opener(",
        (
            DESK + "without_the_certificate_nothing_is_believed_and_sns_sends_again",
            BESIDE + "no_redirect_is_followed_and_no_other_status_is_an_answer",
        ),
    ),
    Mutant(
        "sns: an answer may be of any size",
        FETCHES,
        "                if len(body) > MAX_ANSWER:\n",
        "                if False:\n",
        (
            DESK + "without_the_certificate_nothing_is_believed_and_sns_sends_again",
            BESIDE + "a_whole_answer_is_fetched_up_to_the_limit",
        ),
    ),
    Mutant(
        "sns: an answer may take for ever, byte by byte",
        FETCHES,
        "                if time.monotonic() > ends:\n",
        "                if False:\n",
        (BESIDE + "an_answer_that_does_not_come_or_does_not_end_is_none",),
    ),
    Mutant(
        "sns: a sender waits for as long as a fetch takes",
        FETCHES,
        "        await asyncio.wait([answer], timeout=FETCH_TIMEOUT)\n",
        "        await asyncio.wait([answer])\n",
        (BESIDE + "the_answer_is_bounded_in_time_however_long_the_fetch_takes",),
    ),
    Mutant(
        "sns: any number of fetches is under way",
        FETCHES,
        "            if len(self._under_way) >= FETCHES:\n",
        "            if False:\n",
        (BESIDE + "a_request_is_shared_by_all_who_ask_for_the_same_and_others_are_few",),
    ),
    Mutant(
        "sns: what is busy is delivered to it",
        "src/eventonce/http_report.py",
        "    if SNS_TYPE in headers and answer.status in _AGAIN:\n",
        "    if False:\n",
        (
            BESIDE + "sns_is_told_503_where_others_are_told_429",
            BESIDE + "a_function_behind_http_tells_sns_503_too",
        ),
    ),
    Mutant(
        "sns: any plain text is read",
        EVENTS,
        "    named = binary or SNS_TYPE in headers\n",
        "    named = True\n",
        (BESIDE + "plain_text_is_read_only_with_the_header_that_no_page_can_send",),
    ),
)
