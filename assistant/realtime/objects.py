"""Items, responses and their parts, as the protocol writes them."""

from __future__ import annotations

from assistant.items import Failure, Item, ItemStatus, Response, ResponseStatus, Role
from assistant.realtime.wire import JsonObject


def place(response: Response) -> JsonObject:
    """Return where a piece of content belongs: a response of ours has one item with one part."""
    return {
        "response_id": response.response_id,
        "item_id": response.item_id,
        "output_index": 0,
        "content_index": 0,
    }


def part(response: Response, text: str) -> JsonObject:
    """Return the content part of a response that says `text`."""
    if response.modality == "audio":
        return {"type": "audio", "transcript": text}
    return {"type": "text", "text": text}


def answer_item(response: Response, status: str, text: str | None) -> JsonObject:
    """Return the item of a response being sent; it holds all that was sent, heard or not."""
    content = [] if text is None else [_answer_content(response.modality == "audio", text)]
    return _message(response.item_id, Role.ASSISTANT, status, content)


def item_object(item: Item) -> JsonObject:
    """Return an item of the conversation as it stands: an answer that was cut, as it was heard."""
    if item.role is Role.ASSISTANT:
        cut = item.status is ItemStatus.INCOMPLETE and item.heard is not None
        content = _answer_content(item.spoken, (item.heard if cut else item.text) or "")
    elif item.spoken:
        content = {"type": "input_audio", "transcript": item.text}
    else:
        content = {"type": "input_text", "text": item.text or ""}
    return _message(item.item_id, item.role, item.status.value, [content])


def _answer_content(spoken: bool, text: str) -> JsonObject:
    if spoken:
        return {"type": "output_audio", "transcript": text}
    return {"type": "output_text", "text": text}


def _message(item_id: str, role: Role, status: str, content: list[JsonObject]) -> JsonObject:
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "role": role.value,
        "status": status,
        "content": content,
    }


def failure_object(failure: Failure) -> JsonObject:
    """Return what a client is told of a failed stage."""
    return {"type": "server_error", "code": failure.code, "message": failure.message}


def status_details(response: Response) -> JsonObject | None:
    """Return why a response ended, if it did not simply end."""
    match response.status:
        case ResponseStatus.IN_PROGRESS | ResponseStatus.COMPLETED:
            return None
        case ResponseStatus.FAILED:
            error = failure_object(response.error) if response.error else None
            return {"type": "failed", "error": error}
        case ResponseStatus.CANCELLED | ResponseStatus.INCOMPLETE:
            return {"type": response.status.value, "reason": response.reason}


def usage_object(response: Response) -> JsonObject:
    """Return the token counts; all of ours are text, whatever the modality."""
    usage = response.usage
    cached = usage.cached_tokens
    return {
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "input_token_details": {
            "text_tokens": usage.input_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": usage.output_tokens, "audio_tokens": 0},
    }
