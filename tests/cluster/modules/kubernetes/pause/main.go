// What keeps a pod's namespaces while its containers come and go: it waits to be told to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM)
	<-asked
}
