# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F

# hyperparameters
batch_size = 16
block_size = 24
n_embd = 36
n_head = 3
dropout = 0.2


class Cabeza(nn.Module):
    '''una sola cabeza de auto-atención (con máscara causal)'''

    def __init__(self, tam):
        super().__init__()
        self.llave = nn.Linear(n_embd, tam, bias=False)
        self.consulta = nn.Linear(n_embd, tam, bias=False)
        self.valor = nn.Linear(n_embd, tam, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.llave(x)        # (B,T,tam)
        q = self.consulta(x)     # (B,T,tam)
        pesos = q @ k.transpose(-2, -1) / (q.shape[-1] ** 0.5)   # (B,T,T)
        pesos = pesos.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        pesos = F.softmax(pesos, dim=2)
        pesos = self.dropout(pesos)
        return pesos @ self.valor(x)


class MultiCabeza(nn.Module):
    def __init__(self, n, tam):
        super().__init__()
        self.cabezas = nn.ModuleList(Cabeza(tam) for _ in range(n))
        self.proy = nn.Linear(n * tam, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        # concatenamos en la dimensión de los canales
        return self.dropout(self.proy(torch.cat([c(x) for c in self.cabezas], dim=-1)))


class Bloque(nn.Module):
    def __init__(self):
        super().__init__()
        self.atencion = MultiCabeza(n_head, n_embd // n_head)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(),
                                 nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout))
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.atencion(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class ModeloLenguaje(nn.Module):
    def __init__(self, vocab, capas=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, n_embd)
        self.pos = nn.Embedding(block_size, n_embd)
        self.bloques = nn.Sequential(*[Bloque() for _ in range(capas)])
        self.ln = nn.LayerNorm(n_embd)
        self.salida = nn.Linear(n_embd, vocab)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=idx.device))
        return self.salida(self.ln(self.bloques(x)))


modelo = ModeloLenguaje(65)
print(sum(p.numel() for p in modelo.parameters()), 'parámetros')
print(modelo(torch.randint(65, (2, 10))).shape)
