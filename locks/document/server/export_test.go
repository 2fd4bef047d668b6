package server

// CloseIdle closes the connections to the application that nobody uses.
func (s *Server) CloseIdle() { s.gate.transport.CloseIdleConnections() }
