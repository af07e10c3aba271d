"""Encoding of Kafka's messages, driven by a table of their schemas."""

from agent.kafka.codec.messages import MalformedMessageError, Message, message_versions, read_message
from agent.kafka.codec.reading import Cursor
from agent.kafka.codec.struct import Struct
from agent.kafka.codec.writing import Output

__all__ = [
    "Cursor",
    "MalformedMessageError",
    "Message",
    "Output",
    "Struct",
    "message_versions",
    "read_message",
]
