"""What makes a release: the kernels of a wheel, the packages, their trial, and the project's address in the text."""
