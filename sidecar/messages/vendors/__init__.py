"""One file a family of vendors, each with two names that `sidecar.messages.replies` goes by.

`add` takes one part of a reply into a draft, in their order: the one object of a whole reply, or
each event of a stream. `EXHAUSTED` says which stop reasons mean out of tokens.
"""
