"""How fast decoding is with Medusa heads, beside an assistant and beside nothing that drafts."""
