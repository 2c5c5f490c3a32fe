"""Chats: inbound messages, the outbox and its queues, typing and progress, pairing."""
