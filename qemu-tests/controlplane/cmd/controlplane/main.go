// Command controlplane is kube-apiserver, kube-controller-manager, kube-scheduler and kubectl of one Kubernetes
// release in one program: the name it is started under says which. One program is compiled and linked once, and
// is much smaller than four. Upstream's own commands do all the work.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // CronJobs name time zones

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	if name == "kubectl" {
		// It reads its verbosity before it parses its flags.
		_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
		return
	}
	command, ok := commands[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: start it under the name of one of its programs\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
