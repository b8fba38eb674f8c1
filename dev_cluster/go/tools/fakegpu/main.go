// Command fakegpu is a kubelet device plugin that offers GPUs which do not
// exist, so that scheduling, accounting and failure of nvidia.com/gpu can be
// tested on a machine without one. A container that is given some sees their
// names in NVIDIA_VISIBLE_DEVICES, as with the real plugin.
//
// A GPU whose index or name stands in the -dead file is reported unhealthy
// within half a second, and healthy again once it is gone from there.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	socketName = "pearl-fakegpu.sock"
	look       = 500 * time.Millisecond
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	node, deadFile string
	count          int
}

func (p *plugin) devices() []*api.Device {
	text, _ := os.ReadFile(p.deadFile) // no file: all are well
	dead := strings.Fields(string(text))
	devices := make([]*api.Device, p.count)
	for i := range devices {
		id := fmt.Sprintf("GPU-%s-%d", p.node, i)
		health := api.Healthy
		if slices.Contains(dead, id) || slices.Contains(dead, strconv.Itoa(i)) {
			health = api.Unhealthy
		}
		devices[i] = &api.Device{ID: id, Health: health}
	}
	return devices
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	last := ""
	for {
		devices := p.devices()
		if now := fmt.Sprint(devices); now != last {
			if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		visible := strings.Join(container.DevicesIds, ",")
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": visible},
		})
	}
	return response, nil
}

// serve registers the plugin and stays until the kubelet restarts, which it
// does by removing every socket in the directory.
func (p *plugin) serve(dir, resource string) error {
	socket := filepath.Join(dir, socketName)
	if err := os.RemoveAll(socket); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	api.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	if err := register(filepath.Join(dir, "kubelet.sock"), resource); err != nil {
		return err
	}
	log.Printf("registered %d %s", p.count, resource)
	for {
		if _, err := os.Stat(socket); err != nil {
			return fmt.Errorf("the kubelet restarted: %w", err)
		}
		time.Sleep(look)
	}
}

func register(kubelet, resource string) error {
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: socketName, ResourceName: resource,
	})
	return err
}

func main() {
	p := &plugin{}
	dir := flag.String("dir", api.DevicePluginPath, "the kubelet's device plugin directory")
	resource := flag.String("resource", "nvidia.com/gpu", "the resource to offer")
	flag.StringVar(&p.node, "node", os.Getenv("NODE_NAME"), "node name, part of each GPU's name (default $NODE_NAME)")
	flag.StringVar(&p.deadFile, "dead", "", "file that lists dead GPUs by index or name")
	flag.IntVar(&p.count, "count", 1, "how many GPUs")
	flag.Parse()
	for {
		log.Printf("starting again: %v", p.serve(*dir, *resource))
		time.Sleep(look)
	}
}
