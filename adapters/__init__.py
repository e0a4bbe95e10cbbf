"""Other libraries, listened to: their releases as lines of a log, their trainings as audits."""
