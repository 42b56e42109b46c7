"""`python -m extras.ray_serve`."""

from extras.ray_serve.deployment import main  # workers find classes by their module

main()
