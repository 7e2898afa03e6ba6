"""Readers of replies, one module per family of vendors.

`add` adds a part of a reply to a draft: the whole reply, or an event of a stream. `EXHAUSTED`
lists the stop reasons that mean out of tokens.
"""
