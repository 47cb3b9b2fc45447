"""Genesys topics: from the name in a notification to the template that EventBridge uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

# Every topic of the notification API, July 2026: the words before its first id, and those after it;
# `.` for a topic that ends with the id, `-` for a topic without an id.
_TOPICS: Final = """
analytics.conversation: metrics
analytics.conversations.details.jobs.availability: -
analytics.flow: aggregates metrics
analytics.flowoutcome: aggregates
analytics.queues: activity observations
analytics.users: aggregates
analytics.users.details.jobs.availability: -
analytics.wrapup: aggregates
architect.dependencytracking.build: -
architect.prompts: . resources.{id}
architect.systemprompts: resources.{id}
audits.entitytype: entityid.{id}
bot.conversation: conversations.summaries
businessunits: workforcemanagement.intraday
contentmanagement.documents: .
contentmanagement.workspaces: documents
conversations: transcription
detail.events.collaboratechat.adhoc: messages
detail.events.collaboratechat.group: messages
detail.events.conversation: acd.end acd.start acw attributes contact customer.end customer.start
  flow.end flow.outcome flow.start outbound user.end user.start voicemail.end voicemail.start
  wrapup
employeeperformance.externalmetrics.definitions: -
externalcontacts.contacts: . journey.segments journey.sessions notes.{id} unresolved
externalcontacts.organizations: . notes.{id}
externalcontacts.relationships: .
flows: .
flows.instances.flow: .
flows.outcomes: .
gamification.scorecards.users: .
groups: greetings
integrations.inbound.webhook: invocation
journey.sessions: action.events app.events outcome.events web.events
managementunits: workforcemanagement.intraday
operations.events: .
outbound.attemptlimits: .
outbound.callabletimesets: .
outbound.campaignrules: .
outbound.campaigns: . progress stats
outbound.contactlistfilters: .
outbound.contactlists: . importstatus
outbound.dnclists: . importstatus
outbound.email.campaigns.contact.postContact: -
outbound.email.campaigns.contact.preContact: -
outbound.emailcampaigns: . progress
outbound.importtemplates: importstatus
outbound.messaging.campaigns.contact.postContact: -
outbound.messaging.campaigns.contact.preContact: -
outbound.messagingcampaigns: . progress
outbound.responsesets: .
outbound.rulesets: .
outbound.schedules.campaigns: .
outbound.schedules.sequences: .
outbound.sequences: .
outbound.settings: -
outbound.whatsapp.campaigns.contact.postContact: -
outbound.whatsapp.campaigns.contact.preContact: -
outbound.whatsappcampaigns: . progress
outbound.wrapupcodemappings: .
quality.evaluations: -
routing.queues: conversations conversations.callbacks conversations.calls conversations.chats
  conversations.cobrowseSessions conversations.emails conversations.messages
  conversations.screenshares conversations.socialexpressions conversations.videos users
speechandtextanalytics.conversation: empathy sentiment topics
speechandtextanalytics.programs.general.jobs: .
speechandtextanalytics.programs.publishjobs: .
speechandtextanalytics.programs.topiclinks.jobs: .
speechandtextanalytics.reprocessing.jobs: .
speechandtextanalytics.topics.publishjobs: .
subscription.updated: -
system: {id}
system.no_longer_subscribed: .
system.socket_closing: -
system.token_revoked: .
taskmanagement.workitems: .
taskmanagement.workitems.queues: .
taskmanagement.workitems.users: .
telephony.providers.edges: . logicalinterfaces metrics softwareupdate
telephony.providers.edges.phones: .
telephony.providers.edges.trunks: . metrics
users: activity alerting.alerts alerting.heartbeat.alerts alerting.heartbeat.rules
  alerting.interactionstats.alerts alerting.interactionstats.rules alerting.rules
  analytics.reporting.exports badges.chats callforwarding conversations conversations.callbacks
  conversations.calls conversations.chats conversations.cobrowseSessions conversations.emails
  conversations.inbound.typing.event conversations.messages conversations.screenshares
  conversations.socialexpressions conversations.summaries
  conversations.summaries.settings.preview conversations.videos conversations.{id}.recordings
  conversations.{id}.recordings.{id} conversationsummary employeeengagement.celebrations
  fax.documents geolocation greetings integrationpresence outbound.contactlists.{id}.export
  outbound.dnclists.{id}.export outofoffice persistentconnection presence recordings
  routingStatus station tokens userrecordings voicemail.messages wem.coaching.notification
  wem.learning.assignment workforcemanagement.adherence
  workforcemanagement.adherence.explanations.jobs workforcemanagement.adherence.historical.bulk
  workforcemanagement.alternative.shift.jobs workforcemanagement.historicaladherencequery
  workforcemanagement.integrations.hris.timeofftypes.jobs workforcemanagement.notifications
  workforcemanagement.performanceprediction.schedules.recalculations
  workforcemanagement.schedules workforcemanagement.shrinkage.jobs
  workforcemanagement.timeoffbalance.jobs workforcemanagement.timeoffrequests
video.conferences: .
webdeployments.configurations: .
webdeployments.deployments: .
webmessaging.deployments: undelivered.messages
wem.learning.assignments.modules: .
workflows: conversations.inbound.typing.event
workforcemanagement.agents: - adherence.explanations
workforcemanagement.businessunits: activityplans.jobs activityplans.runs.jobs
  adherence.explanations capacityplans.{id}.staffingrequirements forecasts.staffingrequirement
  schedules scheduling.runs shorttermforecasts shorttermforecasts.copy
  shorttermforecasts.generate shorttermforecasts.import workplanbids.{id}
workforcemanagement.historicaldata.delete.jobs: -
workforcemanagement.historicaldata.deletejob: -
workforcemanagement.historicaldata.status: -
workforcemanagement.managementunits: . adherence agents.sync schedules shifttrades.state.bulk
workforcemanagement.performanceprediction.schedules: .
workforcemanagement.teams: adherence
workforcemanagement.users: schedules.query schedules.search
"""

_ID: Final = "{id}"
_END: Final = ""

_CONCRETE: Final = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{24,}|\d+", re.ASCII
)
"""A word of an unknown topic that is an id: a UUID, a long hexadecimal word, a number."""


LONGEST_TOPIC: Final = 512
"""The most characters of a topic; a longer text is not cached. EventBridge allows a type 128."""


def template(topic: str) -> str:
    """Return the topic with `{id}` for its ids: by the list if known, else by the form of ids."""
    return _template(topic) if len(topic) <= LONGEST_TOPIC else topic


@lru_cache(maxsize=4096)
def _template(topic: str) -> str:
    segments = topic.split(".")
    known = _matched(_known(), segments)
    if known is not None:
        return ".".join(known)
    return ".".join(_ID if _CONCRETE.fullmatch(segment) else segment for segment in segments)


@lru_cache(maxsize=1)
def templates() -> tuple[str, ...]:
    """Return every known topic, as EventBridge names it."""
    return tuple(".".join(steps) for steps in _ends(_known()))


def _ends(node: dict[str, Any]) -> Iterator[list[str]]:
    for step, below in node.items():
        if step == _END:
            yield []
        else:
            yield from ([step, *rest] for rest in _ends(below))


def _matched(node: dict[str, Any], segments: list[str]) -> list[str] | None:
    """Return the template that these segments match; a word of a template goes before an id."""
    if not segments:
        return [] if _END in node else None
    for step in (segments[0], _ID):
        if step and step in node:
            rest = _matched(node[step], segments[1:])
            if rest is not None:
                return [step, *rest]
    return None


@lru_cache(maxsize=1)
def _known() -> dict[str, Any]:
    """Return the list as a tree of segments."""
    tree: dict[str, Any] = {}
    for line in _TOPICS.strip().replace("\n  ", " ").splitlines():
        before, _, after = line.partition(":")
        for rest in after.split():
            tail = {"-": [], ".": [_ID]}.get(rest, [_ID, *rest.split(".")])
            node = tree
            for step in ("v2", *before.split("."), *tail):
                node = node.setdefault(step, {})
            node[_END] = {}
    return tree
