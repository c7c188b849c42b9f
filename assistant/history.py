"""The conversation as it happened: what was said, what was planned, and what was heard of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from assistant.items import Item, ItemStatus, Message, Role

ROOT = "root"


class History:
    """The items of one conversation, in order."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __contains__(self, item_id: str) -> bool:
        return any(item.item_id == item_id for item in self._items)

    def __getitem__(self, item_id: str) -> Item:
        return self._items[self._index(item_id)]

    @property
    def last_id(self) -> str | None:
        """The item that a new one would follow."""
        return self._items[-1].item_id if self._items else None

    def add(self, item: Item, after: str | None = None) -> None:
        """Append `item`, or put it after the item `after` (`"root"`: first).

        Raises `KeyError` when `after` is not in the conversation.
        """
        if after is None:
            self._items.append(item)
        elif after == ROOT:
            self._items.insert(0, item)
        else:
            self._items.insert(self._index(after) + 1, item)

    def previous_id(self, item_id: str) -> str | None:
        """Return the item before `item_id`, `None` for the first."""
        index = self._index(item_id)
        return self._items[index - 1].item_id if index else None

    def remove(self, item_id: str) -> None:
        """Take an item out."""
        del self._items[self._index(item_id)]

    def write(self, item_id: str, text: str, status: ItemStatus, heard: str | None = None) -> Item:
        """Set what an item says; `heard` is the part of an answer that reached the user."""
        index = self._index(item_id)
        item = replace(self._items[index], text=text, status=status, heard=heard)
        self._items[index] = item
        return item

    @property
    def awaits_answer(self) -> bool:
        """Whether the last thing said was the user's."""
        messages = self.messages("")
        return bool(messages) and messages[-1].role is Role.USER

    def messages(self, instructions: str, then: str | None = None) -> tuple[Message, ...]:
        """Return the prompt: instructions, then user and assistant in strict alternation.

        `then` is what it would be if the user had said that next.

        An answer counts as far as it was heard, an unheard one not at all; what one side said in
        several pieces is one message.
        """
        prompt: list[Message] = []
        items = list(self._items)
        if then is not None:
            items.append(Item("then", Role.USER, then, True, ItemStatus.COMPLETED))
        for item in items:
            text = item.heard if item.role is Role.ASSISTANT else item.text
            if not text:
                continue
            if item.role is Role.SYSTEM:
                instructions = f"{instructions}\n\n{text}" if instructions else text
            elif prompt and prompt[-1].role is item.role:
                prompt[-1] = Message(item.role, f"{prompt[-1].text} {text}")
            else:
                prompt.append(Message(item.role, text))
        system = [Message(Role.SYSTEM, instructions)] if instructions else []
        return (*system, *prompt)

    def _index(self, item_id: str) -> int:
        for index, item in enumerate(self._items):
            if item.item_id == item_id:
                return index
        raise KeyError(item_id)
