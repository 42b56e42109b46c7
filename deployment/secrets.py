"""What deploy.py reads from its environment: the secrets of the endpoint that it makes."""

from __future__ import annotations

from pydantic import SecretStr

from config import EnvironmentSettings


class DeploySecrets(EnvironmentSettings):
    """What deploy.py gives an endpoint as its secrets, from ENDPOINT_HF_TOKEN and ENDPOINT_API_KEY.

    They are not HF_TOKEN and API_KEY, because the token that creates endpoints may do more than an
    endpoint needs, and the key is that of another server than the one on this machine.
    """

    endpoint_hf_token: SecretStr = SecretStr("")
    endpoint_api_key: SecretStr = SecretStr("")

    def values(self) -> dict[str, str]:
        """The endpoint's variables in the clear, those that are set."""
        given = {"HF_TOKEN": self.endpoint_hf_token, "API_KEY": self.endpoint_api_key}
        texts = {name: secret.get_secret_value().strip() for name, secret in given.items()}
        return {name: text for name, text in texts.items() if text}
