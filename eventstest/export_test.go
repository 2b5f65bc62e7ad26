package eventstest

// NewServer lets a test see the limits of the server, instead of waiting for them.
var NewServer = newServer
