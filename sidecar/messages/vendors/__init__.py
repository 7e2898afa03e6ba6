"""One module per family of vendors, each with the two names that `sidecar.messages.replies` uses.

`add` adds a part of a reply to a draft, in order: the whole reply, or each event of a stream.
`EXHAUSTED` lists the stop reasons that mean out of tokens.
"""
