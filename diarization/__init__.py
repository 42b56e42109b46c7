"""Who speaks when: pyannote's pipeline behind one small interface, and its embeddings computed once
a window.
"""
