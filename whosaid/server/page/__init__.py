"""The page at `/app/`: a browser client of the server's routes.

Its HTML, CSS and ES modules are served from `static/` as they are.
"""
