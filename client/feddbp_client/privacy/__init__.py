"""What keeps a client's release private: the ledger of its budget, the release that is drawn once, and noise."""
