"""What a client asks for about single items of the conversation."""

from __future__ import annotations

from assistant.answering import Answering
from assistant.context import Context
from assistant.effects import ItemAdded, ItemDeleted, ItemDone, ItemRetrieved
from assistant.events import CreateItem, DeleteItem, RetrieveItem, TruncateItem
from assistant.history import ROOT
from assistant.items import Item, ItemStatus, Role
from assistant.recognising import Recognising


class ItemCommands:
    """Carries out the client's commands; one about an item that is not there is refused."""

    def __init__(self, context: Context, recognising: Recognising, answering: Answering) -> None:
        self._context = context
        self._recognising = recognising
        self._answering = answering

    def create(self, command: CreateItem) -> None:
        """Add a written item."""
        context, after = self._context, command.previous_item_id
        item_id = command.item_id or context.new_id("item")
        if item_id in context.history:
            message = f"There is an item {item_id!r} already; choose another id."
            context.refuse(command.command_id, "item_already_exists", message, "item.id")
        elif after is None or after == ROOT or self._exists(after, command.command_id, "previous_"):
            heard = command.text if command.role is Role.ASSISTANT else None
            item = Item(item_id, command.role, command.text, False, ItemStatus.COMPLETED, heard)
            context.history.add(item, after)
            previous = context.history.previous_id(item_id)
            context.emit(ItemAdded(item, previous))
            context.emit(ItemDone(item, previous))

    def delete(self, command: DeleteItem) -> None:
        """Take an item out of the conversation, unless it is still being made."""
        item_id, answer = command.item_id, self._answering.answer
        if not self._exists(item_id, command.command_id):
            return
        made = answer is not None and answer.response.item_id == item_id
        if made or self._recognising.uses(item_id):
            message = "The item is still being made; cancel the response or wait for its end."
            self._context.refuse(command.command_id, "item_in_use", message, "item_id")
        else:
            self._context.history.remove(item_id)
            self._answering.forget(item_id)
            self._context.emit(ItemDeleted(item_id))

    def retrieve(self, command: RetrieveItem) -> None:
        """Tell an item as it stands."""
        if self._exists(command.item_id, command.command_id):
            self._context.emit(ItemRetrieved(self._context.history[command.item_id]))

    def truncate(self, command: TruncateItem) -> None:
        """Cut an answer to what the client says was heard of it."""
        if self._exists(command.item_id, command.command_id):
            self._answering.truncate(command)

    def _exists(self, item_id: str, command_id: str | None, prefix: str = "") -> bool:
        """Whether the conversation holds the item; if not, the command is refused."""
        if item_id in self._context.history:
            return True
        message = f"The conversation holds no item {item_id!r}."
        self._context.refuse(command_id, "item_not_found", message, f"{prefix}item_id")
        return False
