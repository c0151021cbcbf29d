# One session of agentd as a batch job of Nomad: docs/guide/containers.md.
#
#   nomad var put nomad/jobs/agentd-session anthropic=@key.txt
#   nomad job run -var image=registry.example/agent:1 units/nomad/agentd.nomad.hcl

variable "image" {
  type        = string
  description = "Image with the agent and the programs of agentd."
  default     = "registry.example/agent:1"
}

job "agentd-session" {
  type = "batch"

  group "session" {
    count = 1

    # A second try could repeat half of the work.
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    ephemeral_disk {
      size = 10000
    }

    task "agentd" {
      driver       = "docker"
      user         = "65532:65532"
      kill_signal  = "SIGTERM"
      kill_timeout = "10s"

      config {
        image           = var.image
        entrypoint      = ["agentd", "run-spec"]
        args            = [
          "--state=${NOMAD_TASK_DIR}/state",
          "--runtime-dir=/tmp/agentd",
          "--artifacts=${NOMAD_ALLOC_DIR}/data/results",
          "--config=${NOMAD_TASK_DIR}/agentd.toml",
          "--grace=8s",
          "${NOMAD_TASK_DIR}/session.yaml",
        ]
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
        mount {
          type   = "tmpfs"
          target = "/tmp"
        }
      }

      env {
        CREDENTIALS_DIRECTORY = "${NOMAD_SECRETS_DIR}"
        HOME                  = "${NOMAD_TASK_DIR}/home"
      }

      # The specification of the session: docs/guide/specs.md.
      template {
        destination = "${NOMAD_TASK_DIR}/session.yaml"
        data        = <<-EOT
          agent: opencode
          workspace: new
          initial_prompt: Write a report about the repository to artifacts/report.md.
          permissions: allow
          limits: { turn_seconds: 1h }
        EOT
      }

      template {
        destination = "${NOMAD_TASK_DIR}/agentd.toml"
        data        = <<-EOT
          [agents.opencode]
          command = ["opencode", "acp"]

          [secrets.ANTHROPIC_API_KEY]
          credential = "anthropic"

          [launch]
          manager = "detached"
          stop_close = "3s"
          stop_term = "3s"
        EOT
      }

      # The user of the task reads it; the directory of secrets is in memory.
      template {
        destination = "${NOMAD_SECRETS_DIR}/anthropic"
        uid         = 65532
        gid         = 65532
        perms       = "400"
        data        = "{{ with nomadVar \"nomad/jobs/agentd-session\" }}{{ .anthropic }}{{ end }}"
      }

      resources {
        cpu    = 500
        memory = 4096
      }
    }
  }
}
