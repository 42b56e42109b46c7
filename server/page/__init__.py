"""The page at `/app`: from a recording to a transcript with speakers, in a browser.

It is one more client of the server's routes, written in HTML, CSS and ES modules that are served as
they lie in `static/`. Nothing on the server knows of it but the router that hands these files out.
"""
