def test_a_real_transcriber_answers_plain_json(tiny_handler, hum):
    response = tiny_handler({"inputs": hum, "parameters": {"assisted": True, "language": "en"}})
    assert set(response) == RESPONSE_KEYS
    assert json.loads(json.dumps(response, allow_nan=False)) == response
    assert response["text"] == "".join(chunk["text"] for chunk in response["chunks"])
