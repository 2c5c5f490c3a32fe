"""Every request and response of the API as a typed struct, written once.

The server decodes requests and encodes responses with these structs, the OpenAPI document is
generated from them, and the terminal's client decodes with them.

Two rules say what is on the wire:

* A struct with `omit_defaults` leaves out every field that has its default. All requests have it.
  Fields without a default are required.
* A struct without it sends all of its fields, except those that are `UNSET`. A default is then
  only for a client that reads the answer of an older gateway, which lacks the field.

`object` names the kind of a response. It is the tag of the struct: always sent, checked if
received. Unknown fields are ignored in both directions.

Only msgspec and types of the core are imported here, so that a client can import it cheaply.
"""
