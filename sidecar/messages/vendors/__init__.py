"""One reader a family of vendors: their replies, whole or as stream events, to a `Reply`.

A reader takes the parts in order: the one object of a whole reply, or each event of a stream.
"""
