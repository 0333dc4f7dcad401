"""What a supervisor and its agents share: launch order, control pipe, shared page with the lease deadline."""
