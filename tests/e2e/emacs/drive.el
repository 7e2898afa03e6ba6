;;; drive.el --- token-sidecar in a real Emacs, with eglot and no shim -*- lexical-binding: t -*-

;; Started by test_emacs.py in batch: opens AGENTS.md of the current folder, types, applies a fix,
;; and writes what it saw to seen.json.

(package-initialize)
(require 'eglot)
(require 'flymake)
(require 'json)

;; What docs/how-to/other-editors.md tells a user to write.
(load (getenv "EMACS_SETUP") nil t)

(defvar seen nil)

(defun see (key value)
  (push (cons key value) seen))

(defun wait-until (what test)
  "Let processes speak until TEST gives something, and give that back."
  (let ((deadline (+ (float-time) 60)) found)
    (while (not (setq found (funcall test)))
      (when (> (float-time) deadline)
        (error "Waited in vain for %s" what))
      (accept-process-output nil 0.05))
    found))

(defun findings ()
  (flymake-start)
  (mapcar #'flymake-diagnostic-text (flymake-diagnostics)))

(defun status-with (text)
  (lambda () (and token-sidecar-status (string-match-p text token-sidecar-status))))

(find-file "AGENTS.md")
(text-mode)
(call-interactively #'eglot)
(wait-until "the server" #'eglot-current-server)
(wait-until "a status" (status-with "tokens"))
(see 'opened token-sidecar-status)

(see 'diagnostic (car (wait-until "a diagnostic" #'findings)))

(goto-char (point-min))
(insert "日本語 🦜 and more.\n")
(let* ((uri (eglot--path-to-uri buffer-file-name))
       (server (eglot-current-server))
       (_ (eglot--signal-textDocument/didChange))
       (count (jsonrpc-request server :tokens/count `(:textDocument (:uri ,uri)))))
  (see 'counted (plist-get count :tokens)))

;; A key, not a mouse click, chooses: the first, which keeps the start.
(cl-letf ((last-nonmenu-event ?\r)
          ((symbol-function 'completing-read) (lambda (_ choices &rest _) (caar choices))))
  (eglot-code-actions (point-min) (point-max) nil t))
(eglot--signal-textDocument/didChange)
(see 'fitted (buffer-substring-no-properties (point-min) (point-max)))
(wait-until "the end of the diagnostic" (lambda () (null (findings))))

(with-temp-file "seen.json"
  (insert (json-encode seen)))
(eglot-shutdown (eglot-current-server))
(set-buffer-modified-p nil)
