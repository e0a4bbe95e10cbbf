"""What an attacker is taken to know beside public test records: records of a file, a denoiser."""
