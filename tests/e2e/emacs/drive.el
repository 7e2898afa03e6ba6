;;; drive.el --- token-sidecar in a real Emacs, with eglot and no shim -*- lexical-binding: t -*-

;; test_emacs.py runs this file in batch mode. It opens AGENTS.md in the current folder, types, applies
;; a fix, and writes what Emacs shows to seen.json.

(package-initialize)
(require 'eglot)
(require 'flymake)
(require 'json)

;; The setup in docs/how-to/other-editors.md.
(load (getenv "EMACS_SETUP") nil t)

(defvar seen nil)

(defun see (key value)
  (push (cons key value) seen))

(defun wait-until (what test)
  "Process output until TEST returns non-nil, and return its value.
WHAT describes it in the error message."
  (let ((deadline (+ (float-time) 60)) found)
    (while (not (setq found (funcall test)))
      (when (> (float-time) deadline)
        (error "Timed out waiting for %s" what))
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

;; Choose the first fix, which keeps the start, as if with the keyboard.
(cl-letf ((last-nonmenu-event ?\r)
          ((symbol-function 'completing-read) (lambda (_ choices &rest _) (caar choices))))
  (eglot-code-actions (point-min) (point-max) nil t))
(eglot--signal-textDocument/didChange)
(see 'fitted (buffer-substring-no-properties (point-min) (point-max)))
(wait-until "the diagnostic to disappear" (lambda () (null (findings))))

(with-temp-file "seen.json"
  (insert (json-encode seen)))
(eglot-shutdown (eglot-current-server))
(set-buffer-modified-p nil)
