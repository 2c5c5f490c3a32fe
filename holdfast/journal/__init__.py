"""The durable state: the contract of a store, the codec, and the files beside the store."""
