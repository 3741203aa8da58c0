"""What clients may ask, shaped as the wire: one module for each kind of request.

The models refuse unknown fields and absurd values; `to_question` builders turn
what is left into the planners' frozen questions.
"""
