"""The page at `/app`: from a recording to a transcript with speakers, in a browser.

The one decision: the page is one more client of the service. Its handlers put requests where the
HTTP routes put theirs, under the same limits, and never call a model. Import it only where the page
is served: Gradio takes seconds to load.
"""
