// Command sshd lets the suite log in to a node that has no SSH of its own: a privileged pod in the host's network and
// process namespaces that runs one command a session, with the root of the machine's PID 1 for its own. Who knows the one
// key may do it, whatever name they give. No terminals, no forwarding, no files.
package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"log"
	"net"
	"os/exec"
	"syscall"

	"golang.org/x/crypto/ssh"
)

func main() {
	listen := flag.String("listen", ":22", "`address` and port to listen on")
	key := flag.String("key", "", "the public `key` that may log in, PEM")
	root := flag.String("root", "/proc/1/root", "`directory` that is the commands' root")
	flag.Parse()
	if err := serve(*listen, *key, *root); err != nil {
		log.Fatal(err)
	}
}

func serve(listen, key, root string) error {
	config, err := config(key)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	log.Printf("listening on %s", listener.Addr())
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go connection(conn, config, root)
	}
}

// config has a host key that is made anew at each start: whoever comes does not look at it.
func config(authorized string) (*ssh.ServerConfig, error) {
	block, _ := pem.Decode([]byte(authorized))
	if block == nil {
		return nil, errors.New("-key is no PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	wanted, err := ssh.NewPublicKey(key)
	if err != nil {
		return nil, err
	}
	_, host, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(host)
	if err != nil {
		return nil, err
	}
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if string(key.Marshal()) != string(wanted.Marshal()) {
				return nil, errors.New("another key")
			}
			return nil, nil
		},
	}
	config.AddHostKey(signer)
	return config, nil
}

func connection(conn net.Conn, config *ssh.ServerConfig, root string) {
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		log.Printf("%s: %v", conn.RemoteAddr(), err)
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			offered.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			log.Printf("%s: %v", conn.RemoteAddr(), err)
			continue
		}
		go session(channel, requests, root)
	}
}

func session(channel ssh.Channel, requests <-chan *ssh.Request, root string) {
	defer channel.Close()
	for request := range requests {
		var asked struct{ Command string }
		wanted := request.Type == "exec" && ssh.Unmarshal(request.Payload, &asked) == nil
		if request.WantReply {
			request.Reply(wanted, nil)
		}
		if !wanted {
			continue
		}
		go ssh.DiscardRequests(requests)
		status := struct{ Code uint32 }{run(channel, asked.Command, root)}
		channel.SendRequest("exit-status", false, ssh.Marshal(&status))
		return
	}
}

// run answers the command's exit code, 128 and the signal as a shell does, or 255 if it cannot be run.
func run(channel ssh.Channel, command, root string) uint32 {
	log.Printf("%q", command)
	shell := exec.Command("/bin/sh", "-c", command)
	shell.Dir, shell.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	shell.Stdout, shell.Stderr = channel, channel.Stderr()
	shell.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	err := shell.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &ended):
		log.Printf("%q: %v", command, err)
		return 255
	}
	if status, ok := ended.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + uint32(status.Signal())
	}
	return uint32(ended.ExitCode())
}
