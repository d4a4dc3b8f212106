// Package needs makes `go mod tidy` keep what the suite is compiled from; nothing imports it.
package needs

import (
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/e2e_node"
)
