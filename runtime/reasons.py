"""What the reasons mean that counters, logs and answers name by identifiers: one table of words for people.

    in_words("keep_alive_timeout")                            "silent for one and a half times its keep-alive"
    refusal("rocketmq_mqtt_denials_total{will,deny_rule}")    ("Denied to MQTT clients", "will: a rule denies it")

Programs get the identifier, people the words beside it. Invariant: an identifier without words is shown as it is, with
spaces; `tests/unit/runtime` names every reason that the pages of metrics and errors have. Pure.
"""

from __future__ import annotations

REFUSALS = {
    "rocketmq_requests_refused_total": "Requests the store refused",
    "rocketmq_broker_drops_total": "Dropped or ended by the broker",
    "rocketmq_admin_requests_refused_total": "Requests at the administration port",
    "rocketmq_console_refused_total": "Requests to the console",
    "rocketmq_console_streams_refused_total": "Live pages of the console",
    "rocketmq_mqtt_denials_total": "Denied to MQTT clients",
    "rocketmq_mqtt_sockets_refused_total": "MQTT sockets",
    "rocketmq_mqtt_connects_refused_total": "MQTT CONNECTs",
    "rocketmq_mqtt_publishes_refused_total": "MQTT messages",
    "rocketmq_mqtt_subscriptions_refused_total": "MQTT subscriptions",
    "rocketmq_mqtt_violations_total": "MQTT connections closed",
    "rocketmq_mqtt_handshakes_failed_total": "Handshakes before MQTT",
    "rocketmq_delayed_refused_messages_total": "Delayed messages",
    "rocketmq_unsupported_requests_total": "Requests that are not offered",
    "rocketmq_pop_refused_total": "Requests of POP consumers",
    "rocketmq_lite_refused_total": "Requests of clients of lite topics",
    "rocketmq_messages_withheld_total": "Messages withheld from readers of a filter",
    "rocketmq_remoting_read_cut_": "Remoting connections cut",
}
"""Counter of what was refused or dropped, or the beginning of several -> what it counts. The rest of such a name is the
reason."""

ACCESS = {
    "no_rule": "no rule allows it",
    "deny_rule": "a rule denies it",
    "no_access_list": "there is no access list: everything is allowed",
    "dollar_topic": "topics that begin with $ belong to the server: no client may publish there",
    "qos_retain_or_will": "the rule that fits does not go as far as this QoS, retained, or as a will",
    "retained": "the rule that fits gives no retained messages",
    "history": "the rule that fits gives no history",
    "not_a_filter": "there is no filter behind its prefix",
    "not_authorized": "it may not do that there",
    "unreadable": "the record is damaged",
}

CONNECTIONS = {
    "disconnect": "the client disconnected",
    "peer_closed": "the client closed its socket",
    "connection_error": "the network failed",
    "connect_refused": "the CONNECT was refused",
    "keep_alive_timeout": "silent for one and a half times its keep-alive",
    "taken_over": "its client id connected again",
    "broker_refused": "the broker did not take it",
    "broker_lost": "the broker was lost before it answered",
    "credentials_expired": "its token has run out",
    "queue_gone": "the queue behind its filter was deleted",
    "server_stopping": "the server is stopping",
    "aborted": "the proxy stopped",
    "kicked": "disconnected by an operator",
    "packet_too_large": "a packet above the size limit",
    "connect_timeout": "no complete CONNECT in time",
    "websocket_1002": "a WebSocket frame that breaks the protocol",
    "websocket_1003": "a WebSocket frame of text",
    "websocket_1007": "a WebSocket close with a reason that is no text",
    "websocket_1009": "a WebSocket frame that is too large",
    "unexpected_packet": "a packet that may not come there",
    "input_before_connack": "too much sent before CONNACK",
    "topic_name": "a topic name that is empty or has wildcards",
    "topic_filter": "a topic filter that is empty or has a misplaced wildcard",
    "topic_name_refused": "a topic name that is too long, too deep or makes no sense",
    "topic_filter_refused": "a topic filter that is too long, too deep or makes no sense",
    "invalid_qos": "a QoS other than 0, 1 and 2",
    "packet_id": "a packet id that may not be",
    "reserved_flags": "reserved bits that are set",
    "malformed_packet": "a packet that is not MQTT",
    "malformed_string": "a text that is not UTF-8",
    "remaining_length": "a malformed length",
    "protocol_name": "another protocol name than MQTT",
    "protocol_level": "a version of MQTT that is not served",
    "client_id": "a client id that is missing or too long",
    "protocol_error": "something that MQTT 5 does not allow there",
    "receive_maximum": "more unacknowledged messages than allowed",
    "topic_alias": "a topic alias that may not be",
    "user_properties": "too many user properties",
    "delay": "a delay above the limit",
    "quota_exceeded": "a quota was reached",
    "ended_by_server": "the server sent DISCONNECT",
    "internal_error": "a bug of the server; see its log",
    "connections_max": "too many connections in all",
    "connections_per_address_max": "too many connections of one address",
    "connections_per_user_max": "too many connections of one user",
    "connect_rate": "connects too often",
    "descriptors": "the process has no file descriptor left",
    "proxy_untrusted": "a PROXY header from an address that is not trusted",
    "proxy_header": "a missing or wrong PROXY header",
    "tls": "the TLS handshake failed; see the log",
    "websocket": "the WebSocket handshake was refused",
    "proxy_timeout": "no PROXY header in time",
    "tls_timeout": "no TLS handshake in time",
    "websocket_timeout": "no WebSocket handshake in time",
    "proxy_left": "left before its PROXY header",
    "tls_left": "left during the TLS handshake",
    "websocket_left": "left during the WebSocket handshake",
    "authentication": "a wrong password, or an unknown user",
    "auth_method": "no such method of authentication",
    "busy": "too many passwords wait to be checked",
    "left": "disconnected before the password was checked",
    "superseded": "a newer CONNECT of the same client id came first",
    "unavailable": "who decides gave no answer",
    "retained_payload": "too large to be retained",
    "will_topic": "its will may not be published",
    "foreign_session": "the session belongs to another user",
    "broker": "the broker was not there, or refused",
    "invalid": "a share name or filter that cannot be",
    "too_many": "too many of them",
    "too_wide": "a filter wider than allowed",
    "shared_not_joined": "the session had a new owner",
}

REQUESTS = {
    "disk_full": "the disk is full",
    "log_failed": "the log could not be written",
    "given_up": "the master was replaced before its replicas had it",
    "damaged": "the log is damaged there",
    "message": "the message fits no record",
    "retained_quota": "too many retained messages",
    "mqtt_topics_per_parent": "too many topics below one parent",
    "mqtt_topics_per_user": "too many topics of one user",
    "topics": "too many parent topics",
    "topics_per_user": "too many parent topics of one user",
    "sinks": "too many exactly-once sinks",
    "queue_ids": "all numbers of queues have been given out",
    "not_in_flight": "the message was not in flight",
    "out_of_range": "an offset out of range",
    "malformed": "the request was not understood",
    "queue": "no such queue",
    "mode": "a mode that is not offered there",
    "topic": "no such topic",
    "time": "a time out of range",
    "count": "a count out of range",
    "attempt": "an attempt that makes no sense",
    "quota": "a quota was reached",
    "group": "the group is absent, or not bound to the topic",
    "client": "the client is not known",
    "name": "a name that may not be",
    "action": "an action that is not known",
    "wildcard": "a wildcard in the name of a lite topic",
    "not_a_number": "the time is no number",
    "too_far": "the time is too far ahead",
    "congested": "too many become due in that second",
    "host": "its Host header is no name of this server",
    "unproven": "no key or token, or a wrong one",
    "forbidden": "the key lacks the right",
    "cross_site": "made by another site's page",
    "csrf": "without the session's token",
    "insecure": "from another machine without TLS",
    "unproven_connection": "too much without a key for one connection",
    "unproven_address": "too much without a key from one address",
    "unproven_all": "too much without a key in all",
    "budget": "too many waited for room",
    "deadline": "a request was not finished in time",
    "foreign": "spoke another protocol",
    "refusals": "too many refused requests",
    "silent": "sent nothing",
    "slow": "sent a request too slowly",
    "other": "other",
}

DROPS = {
    "retention": "deleted by retention before they were read",
    "log_shorter": "the log was restored from an older copy",
    "history_refused": "the broker would not read a history on",
    "expired": "expired before they could be sent",
    "too_large_for_client": "larger than the client takes",
    "retained_expired": "retained messages that expired",
    "session_expired": "sessions that expired",
    "filter_expired": "filters that nobody used any more",
    "stage_expired": "rows of a batch that was never committed",
    "client_silent": "consumers that were silent for too long",
    "lite_client_silent": "clients of lite topics that were silent for too long",
    "lite_topic_expired": "lite topics that nobody used any more",
    "offset_fenced": "an offset of a client that no longer owned the session or queue",
    "offset_of_ended_queue": "an offset of an earlier queue of that name",
    "offset_not_written": "an offset that came while the log could not be written",
    "offset_not_merged": "an offset that a stand-in took and the master did not",
    "outcome_not_merged": "the end of a transaction that a stand-in took and the master did not",
    "pop_not_merged": "an acknowledgement that a stand-in took and the master did not",
    "escape_not_merged": "a delivery that a stand-in made and the master did not take",
    "flow_fenced": "steps of QoS 2 of a session that had a new owner",
    "publish_fenced": "a publish of a session that had a new owner",
    "publish_repeated": "a QoS 2 publish that was stored already",
    "shared_ended": "a shared subscription whose members did not come back",
    "shared_retention": "messages of a shared subscription deleted by retention",
    "shared_unreadable": "messages of a shared subscription in a damaged stretch",
    "shared_not_mqtt": "batches in the queue of a shared subscription",
    "shared_settle_late": "acknowledgements of messages that had gone to another member",
    "shared_session_ended": "QoS 2 messages that ended with their session",
    "reply_not_delivered": "a reply whose receiver is not connected",
    "reply_malformed": "a reply without the correlation data of a request",
    "receiver_not_permitted": "something about a group that its member may not read any more",
}

WORDS = {**ACCESS, **CONNECTIONS, **REQUESTS, **DROPS}

OF_COUNTER = {
    "rocketmq_console_refused_total": {"too_many": "too many failed sign-ins of one address"},
    "rocketmq_mqtt_subscriptions_refused_total": {"history": "a start position that makes no sense"},
}
"""Words of reasons that mean something else at one counter."""


def in_words(reason: str) -> str:
    """The words of a reason; what follows a colon stays."""
    word, colon, detail = reason.partition(":")
    return WORDS.get(word, word.replace("_", " ")) + colon + detail


def refusal(counter: str) -> tuple[str, str]:
    """What a counter of refusals counts, and for which reason; the reason is empty where it has none.

    `counter` is its name as in `Registry.values`, the values of its labels in braces.
    """
    name, _, labels = counter.removesuffix("}").partition("{")
    beginning = next((one for one in REFUSALS if name.startswith(one) and one.endswith("_")), None)
    if beginning is not None:
        return REFUSALS[beginning], in_words(name[len(beginning) :].removesuffix("_total"))
    words = OF_COUNTER.get(name, {})
    *wanted, reason = labels.split(",")
    if name == "rocketmq_unsupported_requests_total" and reason.isdigit():
        reason = f"request code {reason}"
    counted = name.removeprefix("rocketmq_").removesuffix("_total").replace("_", " ")
    return REFUSALS.get(name, counted), ": ".join([*wanted, words.get(reason) or in_words(reason)])
