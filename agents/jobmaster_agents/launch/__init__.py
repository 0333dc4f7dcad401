"""What a supervisor and its agents share: the launch order, the control pipe, the page with the lease deadline."""
