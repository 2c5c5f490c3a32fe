"""Chats: who may use the agent, which session a message belongs to, and how messages are sent."""
